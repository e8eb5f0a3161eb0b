package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/refvol/refvol/pkg/apiclient"
)

// newTLSServer starts a server of HTTP/2 that ends with the test.
func newTLSServer(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// closeIdle ends the client's connections.
func closeIdle(client *apiclient.Client) { client.Core().Client.CloseIdleConnections() }
