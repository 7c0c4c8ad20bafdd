"""What pyproject.toml cannot say: the example that `fedcore demo` trains is shipped inside the package.

There is one copy of it, in examples/digits; in a checkout, `fedcore.demo` finds it there.
"""

from setuptools import find_packages, setup

DEMO = "fedcore.demo.digits"

setup(
    packages=[*find_packages(include=["fedcore*", "server_app*", "client_app*"]), DEMO, f"{DEMO}.digits_app"],
    package_dir={DEMO: "examples/digits"},
)
