package leak

import (
	"encoding/json"
	"fmt"
)

// CheckObject is Check of what an object looks like in JSON.
func CheckObject(name string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("search %s: %w", name, err)
	}
	return Check(name, text)
}
