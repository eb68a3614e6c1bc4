"""A peer for tests that speaks to a process of a cluster as no well-meaning one would.

It does the proof of lib/net/wire.c and takes frames apart and together by hand, so that a test can leave out,
repeat or falsify what it likes. Field numbers are proto/baton.proto's.
"""
import hashlib
import hmac
import os
import pathlib
import re
import socket
import struct

FRAMES = {name: int(value) for name, value in re.findall(
    r"F\((\w+), (\d+), ", (pathlib.Path(__file__).resolve().parents[2] / "proto" / "frame.h").read_text())}
NAMES = {value: name for name, value in FRAMES.items()}


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def uint(field, number):
    return varint(field << 3) + varint(number)


def fixed(field, number):
    return varint(field << 3 | 1) + struct.pack("<Q", number)


def data(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def packed(field, numbers):
    return data(field, b"".join(varint(number) for number in numbers))


def fields(body):
    """field -> its last value: a number, or bytes."""
    at, out = 0, {}

    def number():
        nonlocal at
        value = shift = 0
        while True:
            at += 1
            value |= (body[at - 1] & 127) << shift
            shift += 7
            if body[at - 1] < 128:
                return value
    while at < len(body):
        key = number()
        if key & 7 == 0:
            value = number()
        elif key & 7 == 2:
            length = number()
            value, at = body[at:at + length], at + length
        else:
            size = 8 if key & 7 == 1 else 4
            value, at = int.from_bytes(body[at:at + size], "little"), at + size
        out[key >> 3] = value
    return out


def ref(conductor, request, epoch):
    return data(1, fixed(1, conductor) + uint(2, request) + uint(3, epoch))


class Peer:
    """One proven control connection, as connector (HOST:PORT) or as acceptor (of a listening socket)."""

    def __init__(self, place, key):
        self.acceptor = isinstance(place, socket.socket)
        if self.acceptor:
            self.socket = place.accept()[0]
        else:
            host, port = place.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(20)
        own = os.urandom(16)
        if self.acceptor:
            self.socket.sendall(b"BATONW1\n" + own)
            nonces = own + self.take(16)
            assert self.take(32) == self.mac(key, b"connector", nonces)
            self.socket.sendall(self.mac(key, b"acceptor", nonces))
        else:
            nonces = self.take(24)[8:] + own
            self.socket.sendall(own + self.mac(key, b"connector", nonces))
            assert self.take(32) == self.mac(key, b"acceptor", nonces)

    @staticmethod
    def mac(key, role, nonces):
        return hmac.new(key, role + nonces, hashlib.sha256).digest()

    def take(self, count):
        out = b""
        while len(out) < count:
            piece = self.socket.recv(count - len(out))
            if not piece:
                raise ConnectionError("the peer hung up")
            out += piece
        return out

    def send(self, name, body):
        self.socket.sendall(struct.pack("<IHH", len(body), FRAMES[name], 0) + body)

    def receive(self, name=None):
        """The next frame (of that name) as (name, fields)."""
        while True:
            length, kind, _ = struct.unpack("<IHH", self.take(8))
            body = self.take(length)
            if name in (None, NAMES[kind]):
                return NAMES[kind], fields(body)

    def close(self):
        self.socket.close()
