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
	// Path is where a plugin serves its Report.
	Path = "/status"
	// DefaultAddress is where a plugin serves it by default: loopback of its own pod.
	DefaultAddress = "127.0.0.1:9811"
)

// maxAnswers is how many answers may be in memory at once: clients that read nothing keep theirs.
const maxAnswers = 16

// Handler serves at Path what report returns for each request, one at a time: each report looks at all volumes. Answers are
// written side by side. The server must bound the time of an answer, so that clients that read nothing keep others out
// for that time at most.
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
		header.Set("Content-Length", strconv.Itoa(len(body))) // so that an answer that is cut off is noticed
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body)
	})
	return mux
}
