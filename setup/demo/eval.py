"""20 held-out functions, four of each kind. No function of another split is among them."""

from setup.demo.function import Function

FUNCTIONS = (
    Function("operator", "left + right", "left - right", ("2, 3", "4, 0"), """
        def add(left, right):
            total = left + right
            return total
        """),
    Function("operator", "total - used", "total + used", ("9", "4"), """
        def left_over(total):
            used = 4
            return total - used
        """),
    Function("operator", "price - cut", "price + cut", ("9, 2", "5, 0"), """
        def sale(price, cut):
            reduced = price - cut
            return max(reduced, 1)
        """),
    Function("operator", "height + inches", "height - inches", ("60", "0"), """
        def grown(height):
            inches = 3
            return height + inches
        """),
    Function("comparison", "degrees > 20", "degrees < 20", ("25", "20", "10"), """
        def warm(degrees):
            hot = degrees > 20
            return hot
        """),
    Function("comparison", "item < 0", "item > 0", ("[1, -2]", "[]", "[-3, 4]"), """
        def losses(items):
            found = []
            for item in items:
                if item < 0:
                    found.append(item)
            return found
        """),
    Function("comparison", "number == 0", "number != 0", ("0", "4"), """
        def zero(number):
            if number == 0:
                return 'zero'
            return 'other'
        """),
    Function("comparison", "item != unwanted", "item == unwanted", ("[1, 2], 1", "[], 1"), """
        def without(items, unwanted):
            kept = [item for item in items if item != unwanted]
            return kept
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
        def fine(late):
            if late:
                return 6
            return 0
        """),
    Function("constant", "True", "False", ("[1, 2]", "[3]"), """
        def newest(years):
            years = sorted(years, reverse=True)
            return years
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
    Function("name", "endswith", "startswith", ("['a.py']", "[]"), """
        def scripts(names):
            found = []
            for name in names:
                if name.endswith('.py'):
                    found.append(name)
            return found
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
