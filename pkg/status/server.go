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
	// maxReport is the longest Report in bytes that is sent, and read.
	maxReport = 32 << 20
	// maxAnswers is how many reports are made at once: each of them looks at all volumes.
	maxAnswers = 2
	// answerTime is how long a reader may take to take the answer.
	answerTime = 30 * time.Second
)

// fewerObjects is how many objects of a volume a report has that would be too long with all: the first
// of these numbers that makes it short enough. A pod's author may name thousands.
func fewerObjects() []int { return []int{64, 8, 0} }

// Handler serves at Path what report returns for each request, as far as a Query asks for it. It answers
// at most two requests at once, and others with 503.
func Handler(report func() *Report) http.Handler {
	answering := make(chan struct{}, maxAnswers)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, request *http.Request) {
		query, err := parseQuery(request.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case answering <- struct{}{}:
			defer func() { <-answering }()
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("%d others are being answered: try again", maxAnswers), http.StatusServiceUnavailable)
			return
		}
		// Who reads nothing must not keep others out.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
			http.Error(w, fmt.Sprintf("bound the time of the answer: %v", err), http.StatusInternalServerError)
			return
		}
		made := report()
		query.keep(made)
		answer(w, made, query)
	})
	return mux
}

// answer sends a report with its length, so that one that is cut off is noticed.
func answer(w http.ResponseWriter, report *Report, query Query) {
	body, err := encode(report, query)
	if err != nil {
		http.Error(w, fmt.Sprintf("encode the status: %v", err), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body)
}

// encode returns a report as a reader takes it: with fewer objects if need be, but never without one
// that was asked for.
func encode(report *Report, query Query) ([]byte, error) {
	body, err := json.Marshal(report)
	for _, most := range fewerObjects() {
		if err != nil || len(body) <= maxReport || query.Object != "" || !query.omits {
			break
		}
		for i := range report.Volumes {
			if v := &report.Volumes[i]; len(v.Objects) > most {
				v.leaveOut(v.Objects[:most])
			}
		}
		body, err = json.Marshal(report)
	}
	if err == nil && len(body) > maxReport {
		err = fmt.Errorf("%d volumes take %d bytes, and a reader takes %d", len(report.Volumes), len(body), maxReport)
	}
	return body, err
}
