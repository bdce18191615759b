"""24 functions for the warm start's scripted episodes. No function of another split is among them."""

from setup.demo.function import Function

FUNCTIONS = (
    Function("operator", "result + item", "result - item", ("[1, 2]", "[5]", "[]", "[3, 4, 5]"), """
        def total(items):
            result = 0
            for item in items:
                result = result + item
            return result
        """),
    Function("operator", "width * height", "width + height", ("2, 3", "2, 2", "1, 7"), """
        def area(width, height):
            return width * height
        """),
    Function("operator", "paid - price", "paid + price", ("10, 4", "5, 5", "3, 0"), """
        def change(paid, price):
            return paid - price
        """),
    Function("operator", "left and right", "left or right", ("True, False", "True, True", "False, True"), """
        def both(left, right):
            return left and right
        """),
    Function("operator", "number % size", "number + size", ("7, 3", "9, 3", "2, 5"), """
        def remainder(number, size):
            return number % size
        """),
    Function("comparison", "item > best", "item < best", ("[1, 3]", "[4]", "[2, 9, 5]"), """
        def largest(items):
            best = items[0]
            for item in items:
                if item > best:
                    best = item
            return best
        """),
    Function("comparison", "age >= 18", "age > 18", ("18", "30", "7"), """
        def adult(age):
            return age >= 18
        """),
    Function("comparison", "left == right", "left != right", ("1, 1", "1, 2", "'a', 'a'"), """
        def same(left, right):
            return left == right
        """),
    Function("comparison", "item > 0", "item < 0", ("[1, -2]", "[]", "[3, 0, 4]"), """
        def positives(items):
            return [item for item in items if item > 0]
        """),
    Function("comparison", "price < limit", "price > limit", ("[1, 9], 5", "[], 5", "[2, 3, 8], 4"), """
        def cheap(prices, limit):
            found = []
            for price in prices:
                if price < limit:
                    found.append(price)
            return found
        """),
    Function("constant", "2", "3", ("5", "0", "1"), """
        def double(number):
            return number * 2
        """),
    Function("constant", "total += 1", "total += 2", ("[1, 1], 1", "[], 1", "[4, 5], 4"), """
        def count(items, wanted):
            total = 0
            for item in items:
                if item == wanted:
                    total += 1
            return total
        """),
    Function("constant", "result = 1", "result = 0", ("[2, 3]", "[0, 5]", "[4]"), """
        def product(items):
            result = 1
            for item in items:
                result = result * item
            return result
        """),
    Function("constant", "100", "1000", ("1, 2", "0, 4", "3, 4"), """
        def percent(part, whole):
            return 100 * part // whole
        """),
    Function("constant", "60", "50", ("1", "0", "2"), """
        def minutes(hours):
            return hours * 60
        """),
    Function("name", "upper", "lower", ("'hi'", "'1'", "'Abc'"), """
        def shout(text):
            return text.upper()
        """),
    Function("name", "min(items)", "max(items)", ("[1, 2]", "[3]", "[5, 4, 6]"), """
        def smallest(items):
            return min(items)
        """),
    Function("name", "return second, first", "return first, second", ("(1, 2)", "(3, 3)", "('a', 'b')"), """
        def swap(pair):
            first, second = pair
            return second, first
        """),
    Function("name", "startswith", "endswith", ("'apple', 'app'", "'aba', 'a'", "'pie', 'e'"), """
        def starts(word, prefix):
            return word.startswith(prefix)
        """),
    Function("name", "strip", "split", ("' a '", "'b'", "'c d '"), """
        def trim(text):
            return text.strip()
        """),
    Function("off_by_one", "0", "1", ("[4, 5]", "[6, 6]", "[7, 8, 9]"), """
        def first(items):
            return items[0]
        """),
    Function("off_by_one", "range(1, limit + 1)", "range(1, limit)", ("3", "1", "0"), """
        def counting(limit):
            return list(range(1, limit + 1))
        """),
    Function("off_by_one", "len(items) - 1", "len(items) - 2", ("[1, 2]", "[3, 3]", "[5, 6, 7]"), """
        def last(items):
            index = len(items) - 1
            return items[index]
        """),
    Function("off_by_one", "end - start + 1", "end - start", ("1, 3", "2, 2", "5, 9"), """
        def days(start, end):
            return end - start + 1
        """),
)
