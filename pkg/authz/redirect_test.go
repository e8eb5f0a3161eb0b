package authz

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/volume"
)

// TestNoTokenFollowsARedirect: the API server redirects each request to another server, which must never get a pod's token.
func TestNoTokenFollowsARedirect(t *testing.T) {
	for _, code := range []int{http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			var stolen, asked atomic.Int32
			thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.Header.Get("Authorization"), "a1") {
					stolen.Add(1)
				}
			}))
			defer thief.Close()
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				http.Redirect(w, r, thief.URL+r.URL.Path, code)
			}))
			defer api.Close()
			tokens, transport := &Tokens{}, &http.Transport{}
			defer transport.CloseIdleConnections()
			tokens.Put(podOf("a"), "v", goodFor("a1", time.Hour))
			wrapped := tokens.Wrap(transport)
			client, err := authorizationclient.NewForConfig(&rest.Config{Host: api.URL, QPS: -1, Transport: wrapped})
			must(t, err)
			if allowed, err := AskWith(client.SelfSubjectAccessReviews(), tokens)(t.Context(), web.Account(), ref("db"), "watch", volume.Token{}); allowed || err == nil {
				t.Errorf("a review: allowed %t, %v", allowed, err)
			}
			get, err := http.NewRequestWithContext(As(t.Context(), web.Account()), http.MethodGet, api.URL+"/api/v1/namespaces/shop/secrets/db", http.NoBody)
			must(t, err)
			answer, err := (&http.Client{Transport: wrapped}).Do(get)
			if err == nil {
				_ = answer.Body.Close()
				t.Errorf("a get: %s", answer.Status)
			}
			if stolen.Load() > 0 || asked.Load() != 2 {
				t.Errorf("%d of %d requests took the token to another server", stolen.Load(), asked.Load())
			}
		})
	}
}
