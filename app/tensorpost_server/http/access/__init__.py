"""Who may call: API keys, scopes and quotas, Host and Origin checks."""
