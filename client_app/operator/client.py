"""The operator's side of the server's API: hand in a run, follow it to its end, fetch the model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tenacity

from client_app.http import may_pass, refusal, tls_context, unanswered
from fedcore.config import JobSettings, override
from fedcore.errors import FedcoreError, PeerError, ServerUnreachable, StorageFull, Unauthorized
from fedcore.events import RunOut
from fedcore.federation import OperatorKit
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.system.files import replacing
from fedcore.wire import ModelRef, RunIn

POLL_SECONDS = 20
FOLLOW_PAUSE = 0.2


def make_submission(app: Path, run_config: Mapping[str, Any], settings: Mapping[str, Any]) -> RunIn:
    """Check an app and its settings here, before anything is sent; raises ConfigurationError."""
    flower = FlowerApp.load(app)
    override(flower.run_config, run_config, "the run config")
    JobSettings.from_mapping({**flower.settings.to_mapping(), **settings}, where="--set")
    bundle = AppBundle.from_folder(app)
    return RunIn(
        app_sha256=bundle.sha256, files=dict(bundle.files), run_config=dict(run_config), settings=dict(settings)
    )


@dataclass(slots=True)
class OperatorClient:
    """The operator's side of the API: HTTPS with the kit's CA, and a bearer token."""

    kit: OperatorKit
    connect_seconds: float = field(default=30.0, kw_only=True)
    _http: httpx.Client = field(init=False)

    def __enter__(self) -> OperatorClient:
        self._http = httpx.Client(
            base_url=self.kit.server_url,
            headers={"Authorization": f"Bearer {self.kit.token}"},
            verify=tls_context(self.kit.ca_file),
            timeout=httpx.Timeout(60.0, read=POLL_SECONDS + 40.0),
            trust_env=False,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def submit(self, submission: RunIn) -> RunOut:
        """Hand in a run. The server may just be starting, so connecting is tried for a while."""
        return RunOut.model_validate_json(
            self._request("POST", "/v1/runs", json=submission.model_dump(mode="json")).content
        )

    def follow(self, run: str) -> Iterator[RunOut]:
        """The state of the run with its new events, again and again, until it has ended."""
        after = 0
        while True:
            answer = self._request("GET", f"/v1/runs/{run}", params={"after": after, "wait": POLL_SECONDS})
            state = RunOut.model_validate_json(answer.content)
            yield state
            if state.events:
                after = state.events[-1].seq
                # Events come in bursts; nobody needs them one request at a time.
                time.sleep(FOLLOW_PAUSE)
            elif state.status.final:
                return

    def cancel(self, run: str) -> None:
        """End the run."""
        self._request("POST", f"/v1/runs/{run}/cancel")

    def fetch_model(self, run: str, model: ModelRef, out: Path) -> None:
        """Download the final model to `out`, which stays as it is unless the digest is the announced one."""
        digest = hashlib.sha256()
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                replacing(out, mode=0o600, durable=True) as file,
                self._http.stream("GET", f"/v1/runs/{run}/model") as answer,
            ):
                _raise_problem(answer)
                for chunk in answer.iter_bytes(1 << 20):
                    digest.update(chunk)
                    file.write(chunk)
                if digest.hexdigest() != model.sha256:
                    raise PeerError("the model that the server sent does not have the digest that it announced")
        except OSError as error:
            raise StorageFull(f"cannot write {out}: {error.strerror}") from error
        except httpx.TransportError as error:
            raise self._failure(error) from error

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_pass),
            wait=tenacity.wait_exponential_jitter(initial=0.2, max=3.0),
            stop=tenacity.stop_after_delay(self.connect_seconds),
            reraise=True,
        )
        try:
            answer: httpx.Response = retry(self._http.request, method, path, **arguments)
        except httpx.TransportError as error:
            raise self._failure(error) from error
        _raise_problem(answer)
        return answer

    def _failure(self, error: httpx.TransportError) -> FedcoreError:
        failure = unanswered(self.kit.server_url, error)
        if isinstance(failure, Unauthorized):
            return failure
        return ServerUnreachable(
            f"{failure}; is it running (fedcore server --federation DIR), and is the address right?"
        )


def _raise_problem(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise refusal(answer.status_code, answer.read(), of="the operator's token")
