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
// HTTPS, writes the answer to out, and fails if the server refuses.
func curl(ctx context.Context, out io.Writer, args []string) error {
	flags := pflag.NewFlagSet("curl", pflag.ContinueOnError)
	for _, name := range []string{"silent", "show-error", "fail-with-body"} { // as it always is here
		flags.Bool(name, false, "")
	}
	most := flags.Float64("max-time", 0, "")
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
	request, err := http.NewRequestWithContext(ctx, *method, flags.Arg(0), strings.NewReader(*data))
	if err != nil {
		return err
	}
	for _, header := range *headers {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, Proxy: http.ProxyFromEnvironment}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Duration(*most * float64(time.Second))}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(out, response.Body); err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("the server answered %s", response.Status)
	}
	return nil
}
