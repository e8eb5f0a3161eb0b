package status

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sample is a report as a plugin makes it.
func sample(volumes ...Volume) *Report {
	return &Report{APIVersion: APIVersion, Kind: Kind, Driver: "csi.refvol.dev", Node: "node-1", Version: "v0", ObservedAt: noon, Volumes: volumes}
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// do returns the answer to a request, and its body.
func do(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func TestServer(t *testing.T) {
	want := sample(Volume{VolumeID: "v1", Since: noon, Objects: []Object{}})
	address := serve(t, Handler(func() *Report { return want }))
	got, err := fetch(t.Context(), address)
	if err != nil || got.Node != "node-1" || len(got.Volumes) != 1 || got.Volumes[0].VolumeID != "v1" || !got.Volumes[0].Since.Equal(noon) {
		t.Errorf("got %+v, %v", got, err)
	}
	response, body := do(t, http.MethodGet, "http://"+address+Path)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Content-Length": strconv.Itoa(len(body)), "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	} {
		if got := response.Header.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	for _, wrong := range []struct {
		method, path string
		status       int
	}{
		{http.MethodPost, Path, http.StatusMethodNotAllowed},
		{http.MethodDelete, Path, http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/metrics", http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound},
	} {
		if response, _ := do(t, wrong.method, "http://"+address+wrong.path); response.StatusCode != wrong.status {
			t.Errorf("%s %s: %s, want %d", wrong.method, wrong.path, response.Status, wrong.status)
		}
	}
}

// TestServerIsBounded: what is being answered keeps others out, and not for ever.
func TestServerIsBounded(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	url := "http://" + serve(t, Handler(func() *Report {
		began <- struct{}{}
		<-goOn
		return sample()
	})) + Path
	answers := make(chan int, maxAnswers)
	for range maxAnswers {
		go func() {
			response, err := http.Get(url)
			if err != nil {
				answers <- 0
				return
			}
			response.Body.Close()
			answers <- response.StatusCode
		}()
		<-began
	}
	response, body := do(t, http.MethodGet, url)
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "1" || !strings.Contains(body, "2 others are being answered: try again") {
		t.Errorf("one more: %s, %v, %s", response.Status, response.Header, body)
	}
	close(goOn)
	for range maxAnswers {
		if got := <-answers; got != http.StatusOK {
			t.Errorf("got %d", got)
		}
	}
	go func() { <-began }()
	if response, body := do(t, http.MethodGet, url); response.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %s, %s", response.Status, body)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestReportThatIsTooLong: what no reader takes is not sent.
func TestReportThatIsTooLong(t *testing.T) {
	long := sample(Volume{Reason: strings.Repeat("x", maxReport)})
	response, body := do(t, http.MethodGet, "http://"+serve(t, Handler(func() *Report { return long }))+Path)
	if response.StatusCode != http.StatusInternalServerError || !strings.Contains(body, "encode the status: 1 volumes take ") || !strings.Contains(body, "and a reader takes 33554432") {
		t.Errorf("%s, %.200s", response.Status, body)
	}
}

// TestWriterWithoutDeadline: who could hold an answer up for ever gets none.
func TestWriterWithoutDeadline(t *testing.T) {
	answer := httptest.NewRecorder()
	Handler(func() *Report { return sample() }).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path, nil))
	if answer.Code != http.StatusInternalServerError {
		t.Errorf("got %d", answer.Code)
	}
}
