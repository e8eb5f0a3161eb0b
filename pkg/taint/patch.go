package taint

import (
	"encoding/json"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value,omitempty"`
}

// removal returns the JSON patch that removes the selected taints, or nil if there are none.
//
// A patch names taints by their index. Before each removal it tests that the taint is still at
// this index, by key and effect, which are unique on a Node. If other taints have changed in
// the meantime, the whole patch fails, and no other taint can be removed. It goes from the
// last to the first, because a removal moves those behind it.
func (t Taint) removal(taints []corev1.Taint) ([]byte, error) {
	var patch []operation
	for i := len(taints) - 1; i >= 0; i-- {
		if !t.matches(taints[i]) {
			continue
		}
		path := "/spec/taints/" + strconv.Itoa(i)
		patch = append(patch,
			operation{Op: "test", Path: path + "/key", Value: taints[i].Key},
			operation{Op: "test", Path: path + "/effect", Value: string(taints[i].Effect)})
		// An empty value is not there to be tested.
		if taints[i].Value != "" {
			patch = append(patch, operation{Op: "test", Path: path + "/value", Value: taints[i].Value})
		}
		patch = append(patch, operation{Op: "remove", Path: path})
	}
	if patch == nil {
		return nil, nil
	}
	return json.Marshal(patch)
}
