package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, value) }), ReadHeaderTimeout: time.Second,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err = server.Shutdown(bounded)
	if ended := <-ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
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
	var all served
	count := func(err error) {
		all.Sent++
		if err != nil {
			all.Failed++
		}
	}
	for under := 0; ; {
		select {
		case <-ctx.Done():
			for ; under > 0; under-- {
				count(<-results)
			}
			return nil
		case <-ticker.C:
			under++
			go func() { results <- request(client, url) }()
		case err := <-results:
			under--
			count(err)
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
