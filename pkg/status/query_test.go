package status

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

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
