package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// loopback returns the addresses of a host, or none if they are not this pod's own. It looks up no name.
func loopback(host string) []string {
	if host == "localhost" {
		return []string{"127.0.0.1", "::1"}
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return []string{host}
	}
	return nil
}

// request calls the URL once. It follows no redirect. It does not log the answer's text, which may quote a value.
func request(ctx context.Context, o *options) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, o.method, o.url, http.NoBody) //nolint:gosec // the URL is at a loopback address of this pod
	if err != nil {
		return err
	}
	client := http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: dialLoopback},
	}
	response, err := client.Do(req) //nolint:gosec // it only connects to loopback addresses
	if err != nil {
		var withURL *url.Error // its query may hold a secret
		if errors.As(err, &withURL) {
			err = withURL.Err
		}
		return err
	}
	defer response.Body.Close()
	if s := response.StatusCode; s < o.status.first || s > o.status.last {
		return fmt.Errorf("status %d is not from %d to %d: set --status, if it means success", s, o.status.first, o.status.last)
	}
	return nil
}

func dialLoopback(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("%s is not a loopback address", host)
	for _, ip := range loopback(host) {
		var conn net.Conn
		if conn, err = (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(ip, port)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}
