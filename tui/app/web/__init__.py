"""The dashboard in a browser.

service     admission, and textual-serve on the loopback interface
browsertab  the process behind a tab, as the service sees it
browser     that process
"""
