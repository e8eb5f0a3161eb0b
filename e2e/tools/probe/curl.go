package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// curl stands for the program of that name, as far as deploy/examples/smoke.yaml needs it: it makes one request by
// HTTPS, writes the answer to out, and fails if the server refuses. It repeats the request if the server is busy, or can't be reached.
func curl(ctx context.Context, out io.Writer, args []string) error {
	flags := pflag.NewFlagSet("curl", pflag.ContinueOnError)
	for _, name := range []string{"silent", "show-error", "fail-with-body", "retry-connrefused"} { // as it always is here
		flags.Bool(name, false, "")
	}
	most := flags.Float64("max-time", 0, "")
	retries := flags.Int("retry", 0, "")
	flags.Float64("retry-max-time", 0, "") // the tests of the example have a limit of their own
	authority := flags.String("cacert", "", "")
	headers := flags.StringArray("header", nil, "")
	method := flags.String("request", http.MethodGet, "")
	data := flags.String("data", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New(usage)
	}
	certificates, err := os.ReadFile(*authority)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificates)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, Proxy: http.ProxyFromEnvironment}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Duration(*most * float64(time.Second))}
	for wait := time.Second; ; wait *= 2 {
		request, err := http.NewRequestWithContext(ctx, *method, flags.Arg(0), strings.NewReader(*data))
		if err != nil {
			return err
		}
		for _, header := range *headers {
			name, value, _ := strings.Cut(header, ": ")
			request.Header.Set(name, value)
		}
		again, err := send(client, request, out)
		if err == nil || !again || *retries == 0 {
			return err
		}
		*retries--
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// send makes a request and writes the answer to out. If it returns an error, it says whether to repeat the request.
func send(client *http.Client, request *http.Request, out io.Writer) (again bool, err error) {
	response, err := client.Do(request)
	if err != nil {
		return true, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(out, response.Body); err != nil {
		return true, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("the server answered %s", response.Status)
	}
	return response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= http.StatusInternalServerError, err
}
