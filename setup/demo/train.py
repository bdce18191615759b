"""36 functions for reinforcement learning. No function of another split is among them."""

from setup.demo.function import Function

FUNCTIONS = (
    Function("operator", "max(items) - min(items)", "max(items) + min(items)", ("[2, 5]", "[0, 4]", "[9, 3, 6]"), """
        def gap(items):
            return max(items) - min(items)
        """),
    Function("operator", "base * height", "base + height", ("2, 3", "2, 0", "1, 5"), """
        def volume(side, height):
            base = side * side
            return base * height
        """),
    Function("operator", "left or right", "left and right", ("True, False", "True, True", "False, False"), """
        def either(left, right):
            return left or right
        """),
    Function("operator", "bill + extra", "bill - extra", ("100, 10", "50, 0", "40, 5"), """
        def tip(bill, rate):
            extra = bill * rate // 100
            return bill + extra
        """),
    Function("operator", "result * base", "result + base", ("2, 3", "5, 0", "3, 2"), """
        def power(base, exponent):
            result = 1
            for step in range(exponent):
                result = result * base
            return result
        """),
    Function("operator", "start - end", "start + end", ("2, 5", "0, 4", "9, 3"), """
        def distance(start, end):
            return abs(start - end)
        """),
    Function("operator", "word * times", "word + times", ("'ha', 2", "'no', 0", "'a', 3"), """
        def cheer(word, times):
            text = word * times
            return text + "!"
        """),
    Function("operator", "income - sum(costs)", "income + sum(costs)", ("10, [2, 3]", "7, []", "5, [5]"), """
        def balance(income, costs):
            return income - sum(costs)
        """),
    Function("comparison", "left < right", "left > right", ("1, 2", "3, 3", "8, 5"), """
        def smaller(left, right):
            if left < right:
                return left
            return right
        """),
    Function("comparison", "score >= 50", "score > 50", ("50", "80", "20"), """
        def passed(score):
            return score >= 50
        """),
    Function("comparison", "len(items) == 0", "len(items) != 0", ("[]", "[1]", "[2, 3]"), """
        def empty(items):
            return len(items) == 0
        """),
    Function("comparison", "len(word) < len(best)", "len(word) > len(best)", ("['abc', 'd']", "['e']", "['fg', 'hij', 'k']"), """
        def shortest(words):
            best = words[0]
            for word in words:
                if len(word) < len(best):
                    best = word
            return best
        """),
    Function("comparison", "degrees <= 0", "degrees >= 0", ("5", "0", "-3"), """
        def freezing(degrees):
            return degrees <= 0
        """),
    Function("comparison", "item != unwanted", "item == unwanted", ("[1, 2], 2", "[], 1", "[3, 4, 3], 3"), """
        def without(items, unwanted):
            return [item for item in items if item != unwanted]
        """),
    Function("comparison", "number <= high", "number >= high", ("3, 1, 5", "5, 1, 5", "0, 1, 5", "9, 1, 5"), """
        def inside(number, low, high):
            return low <= number and number <= high
        """),
    Function("constant", "60", "100", ("1", "0", "3"), """
        def seconds(minutes):
            return minutes * 60
        """),
    Function("constant", "7", "5", ("2", "0", "1"), """
        def weeks(count):
            return count * 7
        """),
    Function("constant", "3", "4", ("2", "0", "5"), """
        def triple(number):
            return number * 3
        """),
    Function("constant", "== 1", "== 0", ("3", "4", "7"), """
        def odd(number):
            return number % 2 == 1
        """),
    Function("constant", "result = 1", "result = 0", ("3", "1", "4"), """
        def factorial(number):
            result = 1
            for step in range(1, number + 1):
                result = result * step
            return result
        """),
    Function("constant", "total += 1", "total += 2", ("'abc'", "''", "'z'"), """
        def length(text):
            total = 0
            for letter in text:
                total += 1
            return total
        """),
    Function("constant", "100", "10", ("2", "0", "5"), """
        def cents(dollars):
            return dollars * 100
        """),
    Function("name", "lower", "upper", ("'Hi'", "'2'", "'ABC'"), """
        def whisper(text):
            return text.lower()
        """),
    Function("name", "max(scores)", "min(scores)", ("[1, 2]", "[4]", "[7, 9, 8]"), """
        def highest(scores):
            return max(scores)
        """),
    Function("name", "endswith", "startswith", ("'apple', 'le'", "'aba', 'a'", "'pie', 'p'"), """
        def ends(word, suffix):
            return word.endswith(suffix)
        """),
    Function("name", "reversed", "sorted", ("[1, 2]", "[3]", "[4, 6, 5]"), """
        def backwards(items):
            return list(reversed(items))
        """),
    Function("name", "ages.keys", "ages.values", ("{'Ann': 3}", "{}", "{'Bob': 4, 'Cy': 5}"), """
        def people(ages):
            return list(ages.keys())
        """),
    Function("name", "not in result", "not in items", ("[1, 1]", "[]", "[2, 3, 2]"), """
        def unique(items):
            result = []
            for item in items:
                if item not in result:
                    result.append(item)
            return result
        """),
    Function("name", "text.split", "text.strip", ("'a b'", "'c'", "' d e'"), """
        def words(text):
            return text.split()
        """),
    Function("off_by_one", "1", "2", ("[4, 5, 6]", "[1, 2, 2]", "[7, 8, 9]"), """
        def second(items):
            return items[1]
        """),
    Function("off_by_one", "start, 0", "start, 1", ("2", "0", "3"), """
        def countdown(start):
            return list(range(start, 0, -1))
        """),
    Function("off_by_one", "1:", "2:", ("[4, 5]", "[6]", "[7, 8, 9]"), """
        def rest(items):
            return items[1:]
        """),
    Function("off_by_one", "range(limit)", "range(limit - 1)", ("3", "0", "2"), """
        def squares(limit):
            result = []
            for number in range(limit):
                result.append(number * number)
            return result
        """),
    Function("off_by_one", "gaps + 1", "gaps - 1", ("3", "0", "5"), """
        def posts(gaps):
            return gaps + 1
        """),
    Function("off_by_one", "range(number + 1)", "range(number)", ("3", "0", "4"), """
        def sumto(number):
            return sum(range(number + 1))
        """),
    Function("off_by_one", ":size", ":size - 1", ("'apple', 2", "'pie', 1", "'plum', 3"), """
        def beginning(text, size):
            return text[:size]
        """),
)
