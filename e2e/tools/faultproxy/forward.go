package faultproxy

import (
	"encoding/json"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// forward returns what passes requests and answers on, the events of a watch as they come.
func forward(target *url.URL, transport http.RoundTripper, errorLog *log.Logger) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      errorLog,
	}
}

// ServeHTTP records a request and passes it on, or answers it as the fault says.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request := describe(r)
	if refused := refusal(p.record(request)); refused != nil {
		status := refused.Status()
		status.Kind, status.APIVersion = "Status", "v1"
		w.Header().Set("Content-Type", "application/json") // which every client takes
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	if request.Verb == "WATCH" {
		p.watching(request.Object, 1)
		defer p.watching(request.Object, -1)
	}
	p.forward.ServeHTTP(w, r)
}

// record takes note of a request. It returns the fault that it meets.
func (p *Proxy) record(r Request) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r)
	fault := p.fault
	for _, only := range p.only {
		if only.match(r) {
			fault = only.fault
		}
	}
	return fault
}

func (p *Proxy) watching(o Object, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[o] += n
}
