"""Pictures and tables of what traced rollouts did."""
