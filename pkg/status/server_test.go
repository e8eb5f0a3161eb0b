package status

import (
	"fmt"
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

// do returns the answer to a request.
func do(t *testing.T, method, url string) (status int, header http.Header, body string) {
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
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

func TestServer(t *testing.T) {
	want := sample(Volume{VolumeID: "v1", Reason: strings.Repeat("long ", 1000), Since: noon, Objects: []Object{}})
	address := serve(t, Handler(func() *Report { return want }))
	got, err := fetch(t.Context(), address)
	if err != nil || got.Node != "node-1" || len(got.Volumes) != 1 || got.Volumes[0].VolumeID != "v1" || !got.Volumes[0].Since.Equal(noon) {
		t.Errorf("got %+v, %v", got, err)
	}
	_, header, body := do(t, http.MethodGet, "http://"+address+Path)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Content-Length": strconv.Itoa(len(body)), "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	} {
		if got := header.Get(name); got != value {
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
		if got, _, _ := do(t, wrong.method, "http://"+address+wrong.path); got != wrong.status {
			t.Errorf("%s %s: %d, want %d", wrong.method, wrong.path, got, wrong.status)
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
	status, header, body := do(t, http.MethodGet, url)
	if status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" || !strings.Contains(body, "2 others are being answered: try again") {
		t.Errorf("one more: %d, %v, %s", status, header, body)
	}
	close(goOn)
	for range maxAnswers {
		if got := <-answers; got != http.StatusOK {
			t.Errorf("got %d", got)
		}
	}
	go func() { <-began }()
	if status, _, body := do(t, http.MethodGet, url); status != http.StatusOK {
		t.Errorf("afterwards: %d, %s", status, body)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestReportThatIsTooLong: what no reader takes is not sent.
func TestReportThatIsTooLong(t *testing.T) {
	long := sample(Volume{Reason: strings.Repeat("x", maxReport)})
	status, _, body := do(t, http.MethodGet, "http://"+serve(t, Handler(func() *Report { return long }))+Path)
	if status != http.StatusInternalServerError || !strings.Contains(body, "encode the status: 1 volumes take ") || !strings.Contains(body, "and a reader takes 33554432") {
		t.Errorf("%d, %.200s", status, body)
	}
}

// TestReportOfTooManyObjects: a pod's author can name so many objects that no reader would take them all.
// The others' volumes are told of, and one object can be asked for.
func TestReportOfTooManyObjects(t *testing.T) {
	const volumes, objects = 100, 256
	name := func(i int) string { return fmt.Sprint(strings.Repeat("x", 250), i) }
	made := func() *Report {
		report := sample()
		for range volumes {
			v := Volume{Condition: "Current"}
			for i := range objects {
				v.Objects = append(v.Objects, Object{Kind: "Secret", Namespace: "shop", Name: name(i), State: "absent", Reason: strings.Repeat("r", 1000)})
			}
			report.Volumes = append(report.Volumes, v)
		}
		return report
	}
	address := serve(t, Handler(made))
	for query, want := range map[Query]int{
		{}:                                      64,
		{Object: "Secret/shop/" + name(200)}:    1,
		{Object: "ConfigMap/shop/" + name(200)}: 0,
	} {
		got, err := Fetch(t.Context(), &http.Transport{DisableKeepAlives: true}, address, query)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Volumes) != volumes {
			t.Errorf("%d volumes", len(got.Volumes))
		}
		for _, v := range got.Volumes {
			if len(v.Objects) != want || v.OmittedObjects != objects-want || want == 1 && v.Objects[0].Name != name(200) {
				t.Fatalf("%q: %d objects, and %d omitted, want %d", query, len(v.Objects), v.OmittedObjects, want)
			}
		}
	}
	if status, _, _ := do(t, http.MethodGet, "http://"+address+Path); status != http.StatusInternalServerError {
		t.Errorf("a reader that takes what is left for all gets %d", status)
	}
	for _, wrong := range []string{"secret", "Secret/db", "a/b/c/d"} {
		if status, _, body := do(t, http.MethodGet, "http://"+address+Path+"?object="+wrong); status != http.StatusBadRequest ||
			!strings.Contains(body, `object: Invalid value: "`+wrong+`": must be KIND/NAMESPACE/NAME`) {
			t.Errorf("%s: %d, %s", wrong, status, body)
		}
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
