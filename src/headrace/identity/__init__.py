"""Who somebody is: the names in certificates, connections that check them, records that are signed by them."""
