"""20 held-out demo functions, four of each kind. The splits share no function."""

from setup.demo.function import Function

# A table: one line of fields, then the source.
# fmt: off
FUNCTIONS = (
    Function("operator", "left + right", "left - right", ("2, 3", "4, 0"), """
        def add(left, right):
            total = left + right
            return total
        """),
    Function("operator", "total - used", "total + used", ("9, 4", "5, 0"), """
        def left_over(total, used):
            return str(total - used)
        """),
    Function("operator", "price - cut", "price + cut", ("9, 2", "5, 0"), """
        def sale(price, cut):
            reduced = price - cut
            return max(reduced, 1)
        """),
    Function("operator", "base + top", "base - top", ("6, 3", "5, 0"), """
        def stacked(base, top):
            height = base + top
            return [base, height]
        """),
    Function("comparison", "inside > outside", "inside < outside", ("3, 2", "2, 2", "1, 4"), """
        def warm(inside, outside):
            if inside > outside:
                return 'in'
            return 'out'
        """),
    Function("comparison", "item < 0", "item > 0", ("[1, -2]", "[]", "[-3, 4]"), """
        def losses(items):
            return [item for item in items if item < 0]
        """),
    Function("comparison", "first == second", "first != second", ("2, 2", "1, 3"), """
        def matching(first, second):
            if first == second:
                return 'same'
            return 'other'
        """),
    Function("comparison", "left != right", "left == right", ("1, 2", "3, 3"), """
        def differ(left, right):
            return [left != right]
        """),
    Function("constant", "2", "3", ("1", "0"), """
        def wings(birds):
            pairs = birds * 2
            return pairs
        """),
    Function("constant", "50", "40", ("60", "7"), """
        def capped(score):
            return min(score, 50)
        """),
    Function("constant", "6", "8", ("True", "False"), """
        def toll(heavy):
            if heavy:
                return 6
            return 0
        """),
    Function("constant", "2", "3", ("1", "0"), """
        def lids(jars):
            return [jars * 2]
        """),
    Function("name", "max", "min", ("{'a': 1, 'b': 2}", "{'c': 3}"), """
        def tallest(people):
            return max(people.values())
        """),
    Function("name", "min", "max", ("[3, 4]", "[]"), """
        def lightest(weights):
            return min(weights) if weights else 0
        """),
    Function("name", "upper", "lower", ("'ann'", "'X'"), """
        def initial(name):
            return name[0].upper()
        """),
    Function("name", "endswith", "startswith", ("['key']", "[]"), """
        def ending_y(names):
            return [name for name in names if name.endswith('y')]
        """),
    Function("off_by_one", "1", "2", ("['a']", "[]"), """
        def seats(rows):
            return len(rows) + 1
        """),
    Function("off_by_one", "1", "0", ("'abc'", "''"), """
        def headless(text):
            letters = text[1:]
            return letters
        """),
    Function("off_by_one", "1", "0", ("4", "1"), """
        def odds(number):
            return list(range(1, number, 3))
        """),
    Function("off_by_one", "1", "2", ("5", "0"), """
        def turn(count):
            if count:
                return count - 1
            return 0
        """),
)
# fmt: on
