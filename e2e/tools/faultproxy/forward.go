package faultproxy

import (
	"encoding/json"
	"net/http"
	"strings"
)

// ServeHTTP passes a request on, or answers it as the fault says.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if refused := refusal(p.faultOf(r)); refused != nil {
		status := refused.Status()
		status.Kind, status.APIVersion = "Status", "v1"
		w.Header().Set("Content-Type", "application/json") // which every client takes
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	if query := r.URL.Query(); query.Get("watch") == "true" {
		p.watching(query.Get("fieldSelector"), 1)
		defer p.watching("", -1)
	}
	p.forward.ServeHTTP(w, r)
}

// watching counts a watch that begins, with what it selects, or one that ends.
func (p *Proxy) watching(selector string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches += n
	p.begun[selector] += max(n, 0)
}

// faultOf returns the fault that a request meets.
func (p *Proxy) faultOf(r *http.Request) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.only != "" && !strings.Contains(r.URL.Path, p.only) {
		return None
	}
	return p.fault
}
