"""How does telemetry come in over HTTP?"""
