package integration

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func code(err error) codes.Code { return status.Code(err) }

// get fetches a URL over a connection of its own, so that none is left open.
func get(t *testing.T, url string) (body string, status int, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", 0, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), resp.StatusCode, err
}

// ready returns what the plugin says of why it is not ready. It must run with anyPort.
func (n *node) ready() error {
	n.t.Helper()
	address := n.servingAddress()
	body, status, err := get(n.t, "http://"+address+"/readyz")
	if err != nil {
		n.t.Fatal(err)
	}
	if status != 200 {
		return errors.New(body)
	}
	if _, status, err := get(n.t, "http://"+address+"/healthz"); err != nil || status != 200 {
		return fmt.Errorf("/healthz: %d, %w", status, err)
	}
	return nil
}
