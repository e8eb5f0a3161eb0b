package status

import (
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

// Handler serves at Path what report returns for each request, one at a time: each report looks at all volumes. The server
// must bound the time of an answer, so that who reads nothing keeps nobody out.
func Handler(report func() *Report) http.Handler {
	var answering sync.Mutex
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, request *http.Request) {
		answering.Lock()
		defer answering.Unlock()
		if request.Context().Err() != nil {
			return
		}
		body, err := json.Marshal(report())
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
