package status

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

const (
	// Path is the URL path at which a plugin serves its Report.
	Path = "/status"
	// DefaultAddress is the default address of a plugin's status: loopback of its own pod.
	DefaultAddress = "127.0.0.1:9811"
)

// maxAnswers limits the answers in memory. A client that reads nothing keeps its answer there.
const maxAnswers = 16

// Handler serves at Path what report returns. It calls report for one request at a time, because each report reads all volumes. Answers are
// written concurrently. The server must limit the time of an answer, because clients that read nothing take places from others.
func Handler(report func() *Report) http.Handler {
	var reporting sync.Mutex
	encoded := func(ctx context.Context) ([]byte, error) {
		reporting.Lock()
		defer reporting.Unlock()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return json.Marshal(report())
	}
	answers := make(chan struct{}, maxAnswers)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, request *http.Request) {
		select {
		case answers <- struct{}{}:
			defer func() { <-answers }()
		default:
			http.Error(w, "too many answers at once", http.StatusServiceUnavailable)
			return
		}
		body, err := encoded(request.Context())
		if err != nil {
			http.Error(w, fmt.Sprintf("encode the status: %v", err), http.StatusInternalServerError)
			return
		}
		header := w.Header()
		header.Set("Content-Type", "application/json")
		header.Set("Content-Length", strconv.Itoa(len(body))) // lets clients detect an incomplete answer
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body)
	})
	return mux
}
