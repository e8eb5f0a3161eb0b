package status

import (
	"fmt"
	"net/url"
	"strings"
)

// objectParameter is the parameter of a request that names an object of interest. It may be repeated.
const objectParameter = "object"

// maxQuery limits the query of a request, in bytes, because servers limit the header. A client that has a longer one asks for everything.
const maxQuery = 64 << 10

// ObjectKey identifies an object.
type ObjectKey struct{ Kind, Namespace, Name string }

// Key returns what identifies the object. Several objects of a report may have the same key, but for different accounts.
func (o *Object) Key() ObjectKey { return ObjectKey{o.Kind, o.Namespace, o.Name} }

// query returns the query of a request for a report of some objects. Without objects, it is for everything.
func query(objects []ObjectKey) string {
	values := url.Values{}
	for _, o := range objects {
		values.Add(objectParameter, o.Kind+"/"+o.Namespace+"/"+o.Name)
	}
	if text := values.Encode(); len(text) <= maxQuery {
		return text
	}
	return ""
}

// parseObjects returns the objects that the query of a request names.
func parseObjects(query string) (objects []ObjectKey, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("parse the query: %w", err)
	}
	for _, text := range values[objectParameter] {
		parts := strings.Split(text, "/")
		if len(parts) != 3 || parts[0] != "ConfigMap" && parts[0] != "Secret" || parts[1] == "" || parts[2] == "" {
			return nil, fmt.Errorf("%s: Invalid value: %.600q: must be Secret/NAMESPACE/NAME or ConfigMap/NAMESPACE/NAME", objectParameter, text)
		}
		objects = append(objects, ObjectKey{parts[0], parts[1], parts[2]})
	}
	return objects, nil
}
