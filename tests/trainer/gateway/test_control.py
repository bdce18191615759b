"""The trainer's client of the gateway's control routes."""

import asyncio

from trainer.engines.base import Sampling
from trainer.gateway.control import GatewayControl


def test_the_trainers_client_opens_closes_and_raises_typed_errors(gateway):
    async def scenario(client, generator):
        control = GatewayControl(str(client.make_url("")), "control")
        loop = asyncio.get_running_loop()

        def trainer():
            control.open("two", "key2", Sampling(0.5, 0.25, 5, (3,)))
            control.set_version(2)
            assert control.status()["two"] == {"n_calls": 0, "in_flight": 0}
            trace = control.close("two")
            assert trace == control.close("two") and trace.n_calls == 0 and trace.segments == ()
            caught = []
            for call in (
                lambda: control.close("never"),
                lambda: control.open("two", "key2", Sampling()),
                lambda: GatewayControl(str(client.make_url("")), "wrong").status(),
                lambda: GatewayControl("http://127.0.0.1:9", "control").status(),
            ):
                try:
                    call()
                except Exception as error:
                    caught.append(type(error).__name__)
            return caught

        caught = await loop.run_in_executor(None, trainer)
        assert caught == ["NotFound", "Conflict", "Unauthorized", "ModelUnreachable"]
        assert generator.version == 2

    gateway(scenario)
