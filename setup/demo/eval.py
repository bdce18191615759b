"""20 held-out functions, four of each kind. No function of another split is among them."""

from setup.demo.function import Function

FUNCTIONS = (
    Function("operator", "left + right", "left - right", ("2, 3", "4, 0", "1, 1"), """
        def add(left, right):
            return left + right
        """),
    Function("operator", "width + height", "width - height", ("3, 2", "5, 0", "2, 1"), """
        def perimeter(width, height):
            half = width + height
            return half + half
        """),
    Function("operator", "item * factor", "item + factor", ("[1, 3], 2", "[], 2", "[2], 2"), """
        def scale(items, factor):
            return [item * factor for item in items]
        """),
    Function("operator", "and paid", "or paid", ("10, True", "20, True", "5, False"), """
        def allowed(age, paid):
            return age > 17 and paid
        """),
    Function("comparison", "left > right", "left < right", ("1, 2", "3, 3", "8, 5"), """
        def bigger(left, right):
            if left > right:
                return left
            return right
        """),
    Function("comparison", "degrees > 20", "degrees < 20", ("25", "20", "10"), """
        def warm(degrees):
            return degrees > 20
        """),
    Function("comparison", "item < 0", "item > 0", ("[1, -2]", "[]", "[-3, 0, 4]"), """
        def losses(items):
            found = []
            for item in items:
                if item < 0:
                    found.append(item)
            return found
        """),
    Function("comparison", "item == wanted", "item != wanted", ("[1, 2], 2", "[], 1", "[3, 3, 4], 3"), """
        def matches(items, wanted):
            return [item for item in items if item == wanted]
        """),
    Function("constant", "1000", "100", ("2", "0", "5"), """
        def grams(kilos):
            return kilos * 1000
        """),
    Function("constant", "4", "3", ("2", "0", "1"), """
        def wheels(cars):
            return cars * 4
        """),
    Function("constant", "== 0", "== 1", ("[1, 2]", "[]", "[3, 4, 6]"), """
        def evens(items):
            return [item for item in items if item % 2 == 0]
        """),
    Function("constant", "24", "12", ("1", "0", "3"), """
        def hours(days):
            return days * 24
        """),
    Function("name", "text.index", "text.count", ("'aab', 'b'", "'ba', 'a'", "'add', 'd'"), """
        def place(text, letter):
            return text.index(letter)
        """),
    Function("name", "prices.values", "prices.keys", ("{'pen': 2}", "{}", "{'cup': 4, 'hat': 9}"), """
        def amounts(prices):
            return list(prices.values())
        """),
    Function("name", "sorted", "reversed", ("[1, 2]", "[3]", "[5, 4, 6]"), """
        def ordered(items):
            return list(sorted(items))
        """),
    Function("name", "return last", "return first", ("'Ann', 'Lee'", "'Bo', 'Bo'", "'Cy', 'Fox'"), """
        def surname(first, last):
            return last
        """),
    Function("off_by_one", "2", "3", ("[4, 5, 6, 7]", "[1, 2, 3, 3]", "[9, 8, 7, 6]"), """
        def third(items):
            return items[2]
        """),
    Function("off_by_one", "range(limit + 1)", "range(limit)", ("2", "-1", "1"), """
        def steps(limit):
            return list(range(limit + 1))
        """),
    Function("off_by_one", "len(items) - 1", "len(items)", ("[4, 5]", "[1, 2, 3]", "['a']"), """
        def commas(items):
            return len(items) - 1
        """),
    Function("off_by_one", "-1", "-2", ("[1, 2]", "[3, 3]", "[5, 6, 7]"), """
        def final(items):
            return items[-1]
        """),
)
