package faultproxy

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRetryAfter(t *testing.T) {
	p := start(t, Options{})
	c := client(t, p)
	for _, fault := range []Fault{TooManyRequests, Unavailable} {
		for value, seconds := range map[string]int32{"0": 0, "30": 30, "-1": -1, "99999999999": 0, "soon": 0} {
			inject(t, p, fault)
			p.SetRetryAfter(value)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.network.address+"/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			var status metav1.Status
			err = json.NewDecoder(response.Body).Decode(&status)
			response.Body.Close()
			var told int32
			if status.Details != nil {
				told = status.Details.RetryAfterSeconds
			}
			if got := response.Header.Get("Retry-After"); err != nil || got != value || told != seconds {
				t.Errorf("%s: Retry-After is %q, and %d in the body, %v, want %q and %d", fault, got, told, err, value, seconds)
			}
		}
	}
}

func TestRequestsWithoutHeaders(t *testing.T) {
	p := start(t, Options{})
	c := client(t, p)
	inject(t, p, NoHeaders)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, _, err := get(ctx, c, p, "/x")
		answered <- err
	}()
	for tick := time.Tick(time.Millisecond); len(p.Requests()) == 0; {
		<-tick
	}
	inject(t, p, None)
	wantAnswer(t, c, p) // over the same connection
	select {
	case err := <-answered:
		t.Errorf("the request during the fault was answered, with %v", err)
	default:
	}
	cancel()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, n := p.Connections(); n != 1 {
		t.Errorf("%d connections were made, want one", n)
	}
}

func TestFaultsOfSomeRequests(t *testing.T) {
	const secret, configMap = "/api/v1/namespaces/ns/secrets/db", "/api/v1/namespaces/ns/configmaps/app"
	p := start(t, Options{})
	c := client(t, p)
	p.InjectFor(Unauthorized, func(r Request) bool { return r.Name == "app" })
	p.InjectFor(ServerError, func(r Request) bool { return r.Resource == "secrets" })
	for path, want := range map[string]int{secret: 500, configMap: 401, "/x": 200} {
		if code, _, err := get(t.Context(), c, p, path); code != want {
			t.Errorf("%s: answer = %d, %v, want %d", path, code, err, want)
		}
	}
	inject(t, p, None)
	for _, path := range []string{secret, configMap} {
		if code, _, err := get(t.Context(), c, p, path); code != http.StatusOK {
			t.Errorf("%s: answer = %d, %v, want 200", path, code, err)
		}
	}
}

func TestCredentialsAreToldApart(t *testing.T) {
	r := func(header string) Request {
		return describe(&http.Request{URL: &url.URL{Path: "/x"}, Header: http.Header{"Authorization": {header}}})
	}
	if a, b := r("Bearer a").Credential, r("Bearer b").Credential; a == b || a != Credential("a") || r("").Credential != "" {
		t.Errorf("credentials %q and %q", a, b)
	}
}
