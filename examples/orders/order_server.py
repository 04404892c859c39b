"""The orders of a shop, as a server of tools by the Model Context Protocol."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("orders")
ORDERS = {
    4711: {"article": "a cargo bike", "status": "in the workshop", "ready": "on Friday"},
    4712: {"article": "two lamps", "status": "sent", "ready": "tomorrow"},
}


@server.tool()
def order_status(number: int) -> dict[str, str]:
    """Tells where an order is and when it will be ready."""
    return ORDERS.get(number, {"status": "there is no order with this number"})


if __name__ == "__main__":
    server.run()
