package status

import (
	"context"
	"net/http"
	"sync"
)

const (
	// Path is the URL path at which a plugin serves its Report.
	Path = "/status"
	// DefaultAddress is the default address of a plugin's status: loopback of its own pod.
	DefaultAddress = "127.0.0.1:9811"
)

// maxAnswers limits the answers that are being written. Each holds what its report is created from.
const maxAnswers = 16

// Handler serves at Path what collect returns for the objects that a request names, or for all objects if it names none. It calls collect for
// one request at a time, because that reads all volumes. Answers are written concurrently. The server must limit the time of an answer,
// because clients that read nothing take places from others.
func Handler(collect func(objects []ObjectKey) *Stream) http.Handler {
	var collecting sync.Mutex
	collected := func(ctx context.Context, objects []ObjectKey) (*Stream, error) {
		collecting.Lock()
		defer collecting.Unlock()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return collect(objects), nil
	}
	answers := make(chan struct{}, maxAnswers)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, request *http.Request) {
		objects, err := parseObjects(request.URL.RawQuery)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case answers <- struct{}{}:
			defer func() { <-answers }()
		default:
			http.Error(w, "too many answers at once", http.StatusServiceUnavailable)
			return
		}
		stream, err := collected(request.Context(), objects)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		header := w.Header()
		header.Set("Content-Type", "application/json")
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		if err := stream.Write(w); err != nil {
			panic(http.ErrAbortHandler) // closes the connection, so that no client takes this for the whole answer
		}
	})
	return mux
}
