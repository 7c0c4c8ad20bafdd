"""The ServerApp: the strategy of the run config, from seeded initial weights."""

from fedcore import averaging_server
from fedcore.data import load_heart_disease
from heart_disease_app.client_app import app as client

app = averaging_server(client, test=lambda config: load_heart_disease(standardise="pooled").test)
