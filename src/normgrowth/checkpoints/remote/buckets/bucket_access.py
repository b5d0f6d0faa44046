"""Access to buckets with the configuration of this machine: keys, region, endpoint.

obstore does not read ~/.aws, so boto3 finds the S3 configuration; obstore finds Google's keys itself. Without keys,
requests are anonymous, which is enough for public buckets.
"""

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import urlsplit

from normgrowth.checkpoints.remote import retry as attempts
from normgrowth.checkpoints.remote.retry import Failure
from normgrowth.errors import MissingDependency

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSConfig, GCSStore, RetryConfig, S3Store

Store = Union["S3Store", "GCSStore"]

SETUP = {
    "s3": "set it up with `aws configure`, or name a profile in AWS_PROFILE",
    "gs": "set it up with `gcloud auth application-default login`",
}
CONNECT_TIMEOUT = 5.0  # seconds; also for the metadata service that has the keys of a cloud machine
ONCE: "RetryConfig" = {"max_retries": 0}  # requests are repeated by `retry`
# Part of the error message of obstore if no Google credentials are configured and this is not a Google machine.
NO_GOOGLE_KEYS = "computeMetadata"


def open_store(scheme: str, bucket: str, *, anonymous: bool = False) -> Store:
    """The store of a bucket; no request is made yet. anonymous: do not look for Google's keys."""
    if not re.fullmatch(r"[\w.-]+", bucket):
        raise Failure(f"invalid bucket name; the address must be {scheme}://bucket/folder")
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT, attempts.TIMEOUT)),
        "read_timeout": timedelta(seconds=attempts.TIMEOUT),
        "timeout": timedelta(days=1),  # for a whole response; its speed is checked while it is read
        "allow_http": True,  # the configured endpoint may use http
    }
    try:
        return _s3(bucket, options) if scheme == "s3" else _google(bucket, options, anonymous)
    except ImportError as error:
        package, install = error.name or "obstore", 'pip install "normgrowth[buckets]"'
        raise MissingDependency(f"{package}, which {scheme}:// needs,", install) from None


def _s3(bucket: str, options: "ClientConfig") -> "S3Store":
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, PartialCredentialsError, TokenRetrievalError
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store

    try:
        session = boto3.Session()
        try:
            keys = Boto3CredentialProvider(session) if session.get_credentials() else None
        except (PartialCredentialsError, TokenRetrievalError):
            keys = None
        config = Config(
            signature_version=None if keys else UNSIGNED,
            connect_timeout=attempts.TIMEOUT,
            read_timeout=attempts.TIMEOUT,
            retries={"total_max_attempts": 1},
        )
        client = session.client("s3", config=config)
        if re.search(r"\.amazonaws\.com(\.cn)?$", urlsplit(client.meta.endpoint_url).hostname or ""):
            client = session.client("s3", config=config, region_name=_region(client, bucket))
    except (BotoCoreError, ValueError) as error:  # ValueError: the endpoint is not a valid address
        kind = type(error).__name__
        raise Failure(f"cannot use the AWS configuration of this machine ({kind}); {SETUP['s3']}") from None
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        options["root_certificate"] = Path(bundle).read_bytes()
    return S3Store(
        bucket,
        endpoint=client.meta.endpoint_url,
        region=client.meta.region_name or "us-east-1",
        skip_signature=keys is None,
        client_options=options,
        retry_config=ONCE,
        credential_provider=keys,
    )


def _region(client: Any, bucket: str) -> str | None:
    """The region of a bucket at Amazon, which only accepts requests for its own region."""
    from botocore.exceptions import ClientError

    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:  # an error response also has the region
        answer = error.response
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers.get("x-amz-bucket-region") or client.meta.region_name


def _google(bucket: str, options: "ClientConfig", anonymous: bool) -> "GCSStore":
    from obstore.exceptions import BaseError
    from obstore.store import GCSStore

    config: GCSConfig = {}
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        config["base_url"] = emulator if "://" in emulator else f"http://{emulator}"
    if emulator or anonymous:
        config["skip_signature"] = True
    try:
        return GCSStore(bucket, config=config, client_options=options, retry_config=ONCE)
    except BaseError:
        raise Failure(f"cannot use the Google credentials of this machine; {SETUP['gs']}") from None
