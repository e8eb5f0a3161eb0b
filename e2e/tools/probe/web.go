package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// requestEvery is how often sendRequests sends one.
const requestEvery = 20 * time.Millisecond

// serve answers requests at an address with a variable until ctx ends. It fails with a value that begins with bad.
func serve(ctx context.Context, address, name string) error {
	value := os.Getenv(name)
	if strings.HasPrefix(value, "bad") {
		return fmt.Errorf("%s is bad", name)
	}
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, value) }),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return server.Shutdown(bounded)
}

// served counts the requests that were sent, and those that failed.
type served struct{ Sent, Failed int }

// sendRequests requests a URL, each time by a connection of its own, and writes each second how that went, until ctx ends.
func sendRequests(ctx context.Context, out io.Writer, url string) error {
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Second}
	results := make(chan error)
	ticker, tell := time.NewTicker(requestEvery), time.NewTicker(time.Second)
	defer ticker.Stop()
	defer tell.Stop()
	for all := (served{}); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			go func() { results <- request(client, url) }()
		case err := <-results:
			all.Sent++
			if err != nil {
				all.Failed++
			}
		case <-tell.C:
			if err := json.NewEncoder(out).Encode(all); err != nil {
				return err
			}
		}
	}
}

func request(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
