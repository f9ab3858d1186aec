"""The handshake: its messages, and the attacks of peers without the secret that it resists."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from pathways.runtime.hosts.protocol import frames
from pathways.runtime.hosts.protocol.handshake import ClientHandshake, ServerHandshake
from pathways.runtime.hosts.protocol.messages import (
    CHANNELS,
    PEER,
    Challenge,
    Message,
    MessageError,
    Open,
    Proof,
    Purpose,
    Welcome,
    versions,
)

SECRET, OTHER = b"s" * 32, b"o" * 32
STEPS = Purpose("steps", "worker", 0, 0, "controller")


def client(secret: bytes = SECRET, purpose: Purpose = STEPS, nonce: bytes = b"a" * 32) -> ClientHandshake:
    return ClientHandshake(secret, purpose, nonce)


def controller(secret: bytes = SECRET, nonce: bytes = b"b" * 32) -> ServerHandshake:
    return ServerHandshake(
        secret, lambda purpose: purpose.to == "controller" and purpose.channel in CHANNELS, nonce
    )


def probe_port(host: int) -> ServerHandshake:
    return ServerHandshake(
        SECRET, lambda purpose: purpose.channel == PEER and purpose.to == f"host {host}", b"c" * 32
    )


def talk(one: ClientHandshake, other: ServerHandshake) -> list[Message]:
    """Performs a handshake; returns the messages of both sides."""
    messages: list[Message] = []
    message: Message | None = one.first
    while message is not None:
        reply = other.on_message(message)
        messages += [message, reply]
        message = one.on_message(reply)
    return messages


def test_handshake_proves_the_secret_of_both():
    one, other = client(), controller()
    assert [type(message) for message in talk(one, other)] == [Open, Challenge, Proof, Welcome]
    assert other.purpose == STEPS
    assert other.versions == versions()


def test_handshake_lets_the_client_prove_first():
    """A client without the secret gets no code that it could use elsewhere."""
    other = controller()
    one = client(OTHER)
    proof = one.on_message(other.on_message(one.first))
    with pytest.raises(
        MessageError, match="an unauthenticated peer tried to connect: it does not know the secret"
    ):
        other.on_message(proof)
    assert other.purpose is None


def test_handshake_refuses_a_controller_without_the_secret():
    one = client()
    one.on_message(Challenge(b"b" * 32))
    with pytest.raises(MessageError, match="controller does not know the secret of this cluster"):
        one.on_message(Welcome(b"x" * 32))


def test_handshake_refuses_wrong_peers():
    for purpose in (Purpose("admin", "worker", 0, 0, "controller"), Purpose(PEER, "worker", 0, 0, "host 1")):
        with pytest.raises(MessageError, match="no handler for connection"):
            talk(client(purpose=purpose), controller())


def test_handshake_refuses_relays_to_a_probe_port():
    """A probe port sends no code that is valid at the controller, and none to an unauthenticated peer."""
    at_controller, at_probe = controller(), probe_port(1)
    challenge = at_controller.on_message(Open(STEPS, b"a" * 32))
    assert isinstance(challenge, Challenge)
    # Relays the challenge to the port in all possible ways, for a code that answers it.
    for relayed in (challenge, Open(STEPS, challenge.nonce), Open(STEPS, b"a" * 32)):
        replies: list[Message] = []
        try:
            replies.append(at_probe.on_message(relayed))
            replies.append(at_probe.on_message(Proof(b"x" * 32, versions())))
        except MessageError:
            pass
        assert not any(isinstance(reply, Proof | Welcome) for reply in replies)
        at_probe = probe_port(1)


def test_handshake_gives_strangers_nothing_to_reuse():
    """A stranger listens on the port of a lost host, and relays the messages of its peers to others."""
    honest = client(purpose=Purpose(PEER, "worker", 2, 0, "host 1"))
    victims = (controller, lambda: probe_port(3))
    for make_victim, purpose in itertools.product(victims, (honest.first.purpose, STEPS)):
        victim = make_victim()
        challenge = victim.on_message(Open(purpose, honest.first.nonce))
        proof = client(purpose=honest.first.purpose).on_message(challenge)
        assert isinstance(proof, Proof)
        with pytest.raises(MessageError, match=r"an unauthenticated peer|no handler"):
            victim.on_message(proof)


def test_handshake_proof_is_of_one_connection():
    """A proof depends on the nonces, and on all fields of the purpose."""
    first = Challenge(b"b" * 32)
    proof = client().on_message(first)
    for changed in (
        Open(STEPS, b"z" * 32),
        *(
            Open(msgspec.structs.replace(STEPS, **{name: value}), b"a" * 32)
            for name, value in (
                ("channel", "watch"),
                ("host", 1),
                ("epoch", 1),
                ("role", "client"),
                ("name", "ann"),
            )
        ),
    ):
        other = controller()
        other.on_message(changed)
        with pytest.raises(MessageError, match="an unauthenticated peer tried to connect"):
            other.on_message(proof)
    again = controller(nonce=b"y" * 32)
    again.on_message(client().first)
    with pytest.raises(MessageError, match="an unauthenticated peer tried to connect"):
        again.on_message(proof)
    lying = controller()
    lying.on_message(client().first)
    with pytest.raises(MessageError, match="an unauthenticated peer tried to connect"):
        lying.on_message(Proof(proof.code, ("9", "9", "9")))


@pytest.mark.parametrize("seed", range(4))
def test_handshake_refuses_mutated_messages(seed: int):
    """Changed bytes of a valid handshake are refused with an error, or decode to the same message."""
    chance = random.Random(seed)
    messages = talk(client(), controller())
    bodies = [frames.encode(message)[frames.HEADER_BYTES :] for message in messages]
    for _ in range(500):
        at = chance.choice((0, 2))
        body = bytearray(bodies[at])
        for _ in range(chance.randrange(1, 4)):
            where = chance.randrange(len(body))
            match chance.randrange(3):
                case 0:
                    body[where] = chance.randrange(256)
                case 1:
                    del body[where]
                case 2:
                    body.insert(where, chance.randrange(256))
        other = controller()
        try:
            message = frames.decode_for_controller(body)
            if at == 2:
                other.on_message(messages[0])
                other.on_message(message)
            else:
                other.on_message(message)
                other.on_message(messages[2])
        except MessageError:
            assert other.purpose is None
            continue
        assert message == messages[at]
