"""25 demo functions for the scripted episodes of the warm start. The splits share no function."""

from setup.demo.function import Function

# A table: one line of fields, then the source.
# fmt: off
FUNCTIONS = (
    Function("operator", "result + item", "result - item", ("[1, 2]", "[]", "[5]"), """
        def total(items):
            result = 0
            for item in items:
                result = result + item
            return result
        """),
    Function("operator", "left - right", "left + right", ("5, 2", "4, 0", "3, 3"), """
        def difference(left, right):
            return left - right
        """),
    Function("operator", "first and second", "first or second", ("True, False", "True, True", "False, False"), """
        def both(first, second):
            return first and second
        """),
    Function("operator", "wet or cold", "wet and cold", ("True, False", "True, True", "False, False"), """
        def either(wet, cold):
            return wet or cold
        """),
    Function("operator", "text + text", "text - text", ("'ha'", "''"), """
        def doubled(text):
            return text + text
        """),
    Function("comparison", "left > right", "left < right", ("5, 3", "2, 2", "1, 4"), """
        def bigger(left, right):
            if left > right:
                return left
            return right
        """),
    Function("comparison", "degrees < 10", "degrees > 10", ("5", "10", "30"), """
        def cold(degrees):
            return degrees < 10
        """),
    Function("comparison", "left == right", "left != right", ("2, 2", "1, 3"), """
        def same(left, right):
            return left == right
        """),
    Function("comparison", "item != skip", "item == skip", ("[1, 2], 1", "[], 3", "[4, 4], 4"), """
        def others(items, skip):
            return [item for item in items if item != skip]
        """),
    Function("comparison", "item > 0", "item < 0", ("[1, 2]", "[]", "[-3]"), """
        def positive(items):
            found = []
            for item in items:
                if item > 0:
                    found.append(item)
            return found
        """),
    Function("constant", "4", "3", ("1", "0", "2"), """
        def wheels(cars):
            return cars * 4
        """),
    Function("constant", "5", "7", ("True", "False"), """
        def bonus(won):
            if won:
                return 5
            return 0
        """),
    Function("constant", "True", "False", ("[1, 2]", "[]", "[3]"), """
        def ranked(items):
            return sorted(items, reverse=True)
        """),
    Function("constant", "9", "6", ("12", "3"), """
        def limit(number):
            return min(number, 9)
        """),
    Function("constant", "3", "8", ("0", "1"), """
        def fee(weight):
            total = weight * 2
            return total + 3
        """),
    Function("name", "max", "min", ("[1, 2]", "[5]"), """
        def highest(items):
            return max(items)
        """),
    Function("name", "min", "max", ("[3, 4]", "[6]"), """
        def cheapest(prices):
            best = min(prices)
            return best
        """),
    Function("name", "upper", "lower", ("'a'", "''"), """
        def shout(text):
            return text.upper()
        """),
    Function("name", "lower", "upper", ("['A']", "[]"), """
        def quiet(words):
            return [word.lower() for word in words]
        """),
    Function("name", "endswith", "startswith", ("'ok?'", "'ok'"), """
        def question(text):
            return text.endswith('?')
        """),
    Function("off_by_one", "1", "2", ("5", "0"), """
        def following(number):
            return number + 1
        """),
    Function("off_by_one", "1", "2", ("[7, 8]", "[4]"), """
        def last_place(items):
            return len(items) - 1
        """),
    Function("off_by_one", "1", "2", ("2", "0"), """
        def upto(number):
            return list(range(number + 1))
        """),
    Function("off_by_one", "1", "0", ("[5, 6]", "[]"), """
        def rest(items):
            return items[1:]
        """),
    Function("off_by_one", "1", "0", ("3", "1"), """
        def counted(number):
            return list(range(1, number))
        """),
)
# fmt: on
