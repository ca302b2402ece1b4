"""All that tests make up: data sets, their files, records, and worlds that claims are about."""
