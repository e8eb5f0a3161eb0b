package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// requestEvery is how often sendRequests sends one.
const requestEvery = 20 * time.Millisecond

// serve answers requests at an address with a variable until ctx ends, and ends those that have begun.
func serve(ctx context.Context, address, name string) error {
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, os.Getenv(name)) }),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Shutdown(context.WithoutCancel(ctx))
	}
}

// sendRequests requests a URL, each time by a connection of its own, and writes each second how many requests were sent and have failed, until
// ctx ends.
func sendRequests(ctx context.Context, out io.Writer, url string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	results := make(chan error)
	ticker, tell := time.NewTicker(requestEvery), time.NewTicker(time.Second)
	defer ticker.Stop()
	defer tell.Stop()
	for all := (struct{ Sent, Failed int }{}); ; {
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
			if err := answer(out)(all, nil); err != nil {
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
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}
