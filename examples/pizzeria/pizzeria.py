"""Die Karte und die Bestellungen der Pizzeria."""

from typing import Any

MENU = {"Margherita": 8.5, "Funghi": 9.5, "Diavola": 10.5, "Salat": 5.0}
orders: list[dict[str, int]] = []


def menu() -> dict[str, float]:
    """Returns the dishes with their prices in euros."""
    return MENU


def place_order(items: dict[str, int]) -> dict[str, Any]:
    """Gives an order to the kitchen.

    Args:
        items: how many of each dish
    """
    if unknown := [name for name in items if name not in MENU]:
        return {"error": f"not on the menu: {', '.join(unknown)}"}
    if not items or any(number < 1 for number in items.values()):
        return {"error": "at least one of each"}
    orders.append(items)
    return {
        "total_euros": sum(MENU[name] * number for name, number in items.items()),
        "minutes": 25,
    }
