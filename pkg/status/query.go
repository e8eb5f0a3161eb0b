package status

import (
	"fmt"
	"net/url"
	"strings"
)

const (
	// objectParameter is the name of the parameter of a request for one object.
	objectParameter = "object"
	// omitParameter is that of a reader who knows OmittedObjects. Another one would take what is left for all.
	omitParameter = "omit"
)

// Query says what a report is to have. The zero Query asks for everything.
type Query struct {
	// Object, as KIND/NAMESPACE/NAME, has all other objects of the volumes left out. A plugin of a release
	// that doesn't know it leaves out none.
	Object string

	// omits says that the reader knows OmittedObjects.
	omits bool
}

// String returns the query of a URL.
func (q Query) String() string {
	values := url.Values{omitParameter: {"true"}}
	if q.Object != "" {
		values.Set(objectParameter, q.Object)
	}
	return values.Encode()
}

// parseQuery reads what String has written.
func parseQuery(values url.Values) (Query, error) {
	q := Query{Object: values.Get(objectParameter), omits: values.Get(omitParameter) == "true"}
	if q.Object != "" && strings.Count(q.Object, "/") != 2 {
		return q, fmt.Errorf("%s: Invalid value: %q: must be KIND/NAMESPACE/NAME", objectParameter, cut(q.Object))
	}
	return q, nil
}

// keep leaves out the objects that the query doesn't ask for.
func (q Query) keep(r *Report) {
	if q.Object == "" {
		return
	}
	for i := range r.Volumes {
		v := &r.Volumes[i]
		var asked []Object
		for _, o := range v.Objects {
			if o.Kind+"/"+o.Namespace+"/"+o.Name == q.Object {
				asked = append(asked, o)
			}
		}
		v.leaveOut(asked)
	}
}

// leaveOut has kept be all objects that the volume tells of.
func (v *Volume) leaveOut(kept []Object) {
	v.OmittedObjects += len(v.Objects) - len(kept)
	v.Objects = append([]Object{}, kept...) // never null in JSON
}
