package status

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	// Path is where a plugin serves its Report.
	Path = "/status"
	// DefaultAddress is where a plugin serves it by default: loopback of its own pod.
	DefaultAddress = "127.0.0.1:9811"
	// answerTime is how long a reader may take to take the answer.
	answerTime = 30 * time.Second
)

// Handler serves at Path what report returns for each request, one at a time: each report looks at all volumes.
func Handler(report func() *Report) http.Handler {
	answering := make(chan struct{}, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, request *http.Request) {
		select {
		case answering <- struct{}{}:
			defer func() { <-answering }()
		case <-request.Context().Done():
			return
		}
		// Who reads nothing must not keep others out.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
			http.Error(w, fmt.Sprintf("bound the time of the answer: %v", err), http.StatusInternalServerError)
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
