"""HTTP routes: parse the request, call one part of the server, format the response."""
