package status

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// sample returns a report as a plugin makes it.
func sample(volumes ...Volume) *Report {
	report := &Report{Volumes: volumes, Header: Header{
		APIVersion: APIVersion, Kind: Kind, Driver: "csi.refvol.dev", Node: "node-1", Version: "v0", ObservedAt: noon,
	}}
	report.Number()
	return report
}

// stream returns a report as a stream.
func stream(report *Report) *Stream {
	return &Stream{
		Header: report.Header, Objects: slices.Values(report.Objects), Others: report.Others,
		Volumes: func(yield func(*Volume) bool) {
			for i := range report.Volumes {
				if !yield(&report.Volumes[i]) {
					return
				}
			}
		},
	}
}

// answering returns a handler that answers each question with what report returns.
func answering(report func() *Report) http.Handler {
	return Handler(func([]ObjectKey) *Stream { return stream(report()) })
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// do returns the answer to a request.
func do(t *testing.T, method, url string) (status int, header http.Header, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	must(t, err)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, response.Header, string(text)
}

func TestServer(t *testing.T) {
	want := sample(Volume{VolumeID: "v1", Reason: strings.Repeat("long ", 1000), Since: noon, Objects: []VolumeObject{}})
	address := serve(t, answering(func() *Report { return want }))
	got, err := fetch(t.Context(), address)
	if err != nil || got.Node != "node-1" || len(got.Volumes) != 1 || got.Volumes[0].VolumeID != "v1" || !got.Volumes[0].Since.Equal(noon) {
		t.Errorf("got %+v, %v", got, err)
	}
	_, header, _ := do(t, http.MethodGet, "http://"+address+Path)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
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

// TestWhoReadsNothing: a client that doesn't read a large answer delays nobody else.
func TestWhoReadsNothing(t *testing.T) {
	large := sample(Volume{VolumeID: "v1", Reason: strings.Repeat("x", 16<<20), Since: noon, Objects: []VolumeObject{}})
	made := make(chan struct{}, 2)
	address := serve(t, answering(func() *Report {
		made <- struct{}{}
		if len(made) == 1 {
			return large
		}
		return sample()
	}))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	must(t, err)
	defer conn.Close()
	if _, err := conn.Write([]byte("GET " + Path + " HTTP/1.1\r\nHost: test\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil { // the answer is being written
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := fetch(ctx, address); err != nil {
		t.Errorf("while another one reads nothing: %v", err)
	}
}

// TestManyAnswers: if there are too many at the same time, another one is refused, and answered once there is room.
func TestManyAnswers(t *testing.T) {
	goOn := make(chan struct{})
	address := serve(t, answering(func() *Report {
		<-goOn
		return sample()
	}))
	answers := make(chan int, maxAnswers+1)
	var asking sync.WaitGroup
	for range maxAnswers + 1 {
		asking.Go(func() {
			status, _, _ := do(t, http.MethodGet, "http://"+address+Path)
			answers <- status
		})
	}
	if status := <-answers; status != http.StatusServiceUnavailable {
		t.Errorf("the first answer is %d", status)
	}
	close(goOn)
	asking.Wait()
	for range maxAnswers {
		if status := <-answers; status != http.StatusOK {
			t.Errorf("another answer is %d", status)
		}
	}
	if status, _, _ := do(t, http.MethodGet, "http://"+address+Path); status != http.StatusOK {
		t.Errorf("later the answer is %d", status)
	}
}

// TestOneAnswerAtATime: a request that comes meanwhile waits, and is dropped if it gives up.
func TestOneAnswerAtATime(t *testing.T) {
	began, goOn := make(chan struct{}, 3), make(chan struct{})
	address := serve(t, answering(func() *Report {
		began <- struct{}{}
		<-goOn
		return sample()
	}))
	answers := make(chan error, 2)
	ask := func(ctx context.Context) {
		_, err := fetch(ctx, address)
		answers <- err
	}
	go ask(t.Context())
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	ask(ctx)
	if err := <-answers; !errors.Is(err, context.DeadlineExceeded) || len(began) > 0 {
		t.Errorf("a second one got %v, and %d reports began", err, len(began))
	}
	go ask(t.Context())
	close(goOn)
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// TestQuery: the plugin learns of which objects a client wants to know.
func TestQuery(t *testing.T) {
	var asked [][]ObjectKey
	address := serve(t, Handler(func(objects []ObjectKey) *Stream {
		asked = append(asked, objects)
		return stream(sample())
	}))
	transport := &http.Transport{DisableKeepAlives: true}
	few := []ObjectKey{{"Secret", "shop", "db"}, {"ConfigMap", "shop", "a.b&object=c"}}
	many := make([]ObjectKey, 1000)
	for i := range many {
		many[i] = ObjectKey{"Secret", "shop", strings.Repeat("x", 253)}
	}
	for _, objects := range [][]ObjectKey{few, nil, many} {
		if _, err := Fetch(t.Context(), transport, address, objects...); err != nil {
			t.Error(err)
		}
	}
	if len(asked) != 3 || !slices.Equal(asked[0], few) || asked[1] != nil || asked[2] != nil {
		t.Errorf("got %.1000v", asked)
	}
	for query, want := range map[string]int{
		"object=Secret/shop/db&object=ConfigMap/shop/app&later=1": http.StatusOK,
		"object=":                             http.StatusBadRequest,
		"object=db":                           http.StatusBadRequest,
		"object=%zz":                          http.StatusBadRequest,
		"object=Secret/shop/":                 http.StatusBadRequest,
		"object=Secret//db":                   http.StatusBadRequest,
		"object=secret/shop/db":               http.StatusBadRequest,
		"object=Secret/shop/db/x":             http.StatusBadRequest,
		"object=Secret/shop/db&object=%1b/b/": http.StatusBadRequest,
	} {
		code, _, body := do(t, http.MethodGet, "http://"+address+Path+"?"+query)
		if code != want || code != http.StatusOK && (!strings.Contains(body, "object: Invalid value: ") && !strings.Contains(body, "parse the query: ") || strings.Contains(body, "\x1b")) {
			t.Errorf("%s: %d, %s", query, code, body)
		}
	}
}
