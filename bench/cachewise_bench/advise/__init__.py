"""The command `advise`: does CacheWise pay on this traffic?"""
