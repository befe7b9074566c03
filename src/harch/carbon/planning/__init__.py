"""Where and when should work run? Pure plans: forecasts and work come in, quotas, promises and reasons go out."""
