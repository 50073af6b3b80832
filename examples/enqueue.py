"""Starts a workflow of a Rust program, and signals it, from Python.

    python examples/enqueue.py postgres://localhost/shop order-42

Both happen in the transaction that writes the order: they exist if and only if it commits. The
Rust program runs the workflow `checkout` on `postgres://localhost/shop`, and needs to know nothing
about Python. The role of this program needs USAGE of the schema `abide`, and no right to any table
in it.
"""

import json
import sys

import psycopg


def place_order(connection, order_id, number, price):
    with connection.transaction():
        connection.execute("INSERT INTO orders (id, price) VALUES (%s, %s)", (order_id, price))
        # Every option of a start in Rust is a parameter: lane, priority, delay, deadline, tags …
        connection.execute(
            "SELECT abide.start('checkout', %s, id => %s, tags => %s)",
            (json.dumps({"number": number, "note": None}), order_id, json.dumps({"source": "python"})),
        )


def pay(connection, order_id, amount, receipt):
    with connection.transaction():
        connection.execute("UPDATE orders SET paid = %s WHERE id = %s", (amount, order_id))
        # Sent twice with the same key, it is received once.
        connection.execute(
            "SELECT abide.signal(%s, 'paid', %s, key => %s)", (order_id, json.dumps(amount), receipt)
        )


def main(url, order_id):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, price int, paid int)"
        )
        try:
            with connection.transaction():
                place_order(connection, "rolled-back-" + order_id, 1, 10)
                raise RuntimeError("the customer has left")
        except RuntimeError as error:
            print(f"nothing was started: {error}")
        place_order(connection, order_id, 7, 30)
        for _ in range(2):
            pay(connection, order_id, 35, "receipt-1")
        print(f"{order_id} was placed and paid")


if __name__ == "__main__":
    main(*sys.argv[1:])
