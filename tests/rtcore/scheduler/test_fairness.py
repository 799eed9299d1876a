"""TenantAccounts: what is remembered of tenants that come once and never again."""

from __future__ import annotations

from rtcore.scheduler.fairness import MOST_COUNTERS, TenantAccounts


def visit(accounts: TenantAccounts, tenant: str, tokens: int) -> None:
    accounts.activate(tenant)
    accounts.serve(tenant)
    accounts.charge(tenant, tokens)


def test_tenants_that_never_come_back_are_forgotten() -> None:
    accounts = TenantAccounts({})
    most = 0
    for number in range(3 * MOST_COUNTERS):
        visit(accounts, f"tenant-{number}", 1 + number % 7)
        most = max(most, len(accounts))
    assert most == MOST_COUNTERS


def test_forgetting_is_rare_where_every_tenant_is_new() -> None:
    accounts = TenantAccounts({})
    shrunk, before = 0, 0
    for number in range(3 * MOST_COUNTERS):
        visit(accounts, f"tenant-{number}", 1)
        shrunk += len(accounts) < before
        before = len(accounts)
    assert 1 <= shrunk <= 6


def test_those_that_were_served_most_stay_behind_others() -> None:
    accounts = TenantAccounts({"heavy": 2.0})
    visit(accounts, "heavy", 100_000)
    for number in range(2 * MOST_COUNTERS):
        visit(accounts, f"tenant-{number}", 5)
    assert accounts.counter("heavy") == 50_000
    assert accounts.counter("tenant-0") < accounts.counter("heavy")
