"""How often logins may fail, and whom others cannot shut out; time is a parameter."""

from __future__ import annotations

from cluster.management.access.attempts import (
    ADDRESS_BURST,
    ADDRESS_PER_S,
    NAME_BURST,
    NAME_PER_S,
    WATCHED_MAX,
    Attempts,
    Failures,
)


def fail(attempts: Attempts, network: str, name: str, times: int, now: float = 0.0) -> int:
    """Fail so often, and tell how many of these were compared."""
    return sum(attempts.take(network, name, now) is not None for _ in range(times))


def test_failures_are_forgiven_with_time_and_given_back() -> None:
    failures = Failures(2, ADDRESS_PER_S)
    assert [failures.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert failures.take("b", 0.0)
    assert failures.take("a", 1 / ADDRESS_PER_S)
    failures.give_back("a")
    failures.give_back("nobody")
    assert failures.take("a", 1 / ADDRESS_PER_S)


def test_a_network_is_slowed_down_whatever_names_it_tries() -> None:
    attempts = Attempts()
    assert sum(fail(attempts, "a", f"name-{number}", 1) for number in range(100)) == ADDRESS_BURST
    assert fail(attempts, "a", "anna", 5, now=1 / ADDRESS_PER_S) == 1


def test_a_name_is_slowed_down_over_all_networks_but_each_is_heard_once() -> None:
    attempts = Attempts()
    compared = sum(fail(attempts, f"network-{number}", "anna", 5) for number in range(100))
    assert compared == 100 + NAME_BURST
    assert fail(attempts, "network-99", "anna", 5, now=1 / NAME_PER_S) == 1
    assert fail(attempts, "new", "anna", 5, now=1 / NAME_PER_S) == 1


def test_where_a_name_has_logged_in_it_has_a_count_of_its_own() -> None:
    attempts = Attempts()
    taken = attempts.take("office", "anna", 0.0)
    assert taken is not None
    attempts.fitted("office", "anna", taken)
    fail(attempts, "office", "bob", 100)
    for number in range(100):
        fail(attempts, f"network-{number}", "anna", 100)
    assert attempts.knows("office", "anna")
    assert fail(attempts, "office", "anna", 100) == ADDRESS_BURST, "others of the office do not count for her"
    assert not attempts.knows("office", "bob")


def test_what_was_not_compared_is_given_back_as_it_was_taken() -> None:
    attempts = Attempts()
    for _ in range(3 * NAME_BURST):
        taken = attempts.take("a", "anna", 0.0)
        assert taken is not None
        attempts.give_back(taken)
    assert fail(attempts, "a", "anna", 100) == ADDRESS_BURST


def test_so_many_networks_and_names_are_known() -> None:
    attempts = Attempts()
    for number in range(WATCHED_MAX + 10):
        taken = attempts.take(f"network-{number}", "anna", 0.0)
        assert taken is not None
        attempts.fitted(f"network-{number}", "anna", taken)
    assert not attempts.knows("network-9", "anna")
    assert attempts.knows("network-10", "anna")
    assert len(attempts._known) == WATCHED_MAX
