package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// The plugin logs each change of what ails a volume with one of these lines, as text or JSON.
const (
	failsLine   = "Volume does not show what it should"
	currentLine = "Volume is current again"
)

var (
	// problemText matches such a line in the text format, where an error of several lines is
	// in angle brackets.
	problemText = regexp.MustCompile(`"(` + failsLine + `|` + currentLine + `)"(?: err=("(?:[^"\\]|\\.)*"|<(?s:.*?)\n >))? [^\n]*?volumeID="([^"]+)"`)
	problemJSON = regexp.MustCompile(`(?m)^\{.*"msg":"(?:` + failsLine + `|` + currentLine + `)".*\}$`)
)

// Problem returns what this run of the plugin has logged last to ail a volume, "" for nothing.
func (p *Plugin) Problem(v *Volume) (string, error) {
	log, err := os.ReadFile(p.LogPath())
	if err != nil {
		return "", err
	}
	return problemIn(string(log[min(p.logged, int64(len(log))):]), v.ID())
}

func problemIn(log, volumeID string) (string, error) {
	problem := ""
	for _, line := range problemText.FindAllStringSubmatch(log, -1) {
		if line[3] != volumeID {
			continue
		}
		text := line[2]
		if strings.HasPrefix(text, `"`) {
			var err error
			if text, err = strconv.Unquote(text); err != nil {
				return "", fmt.Errorf("log line %s: %w", line[0], err)
			}
		}
		problem = text
	}
	for _, line := range problemJSON.FindAllString(log, -1) {
		var fields struct {
			Err      string `json:"err"`
			VolumeID string `json:"volumeID"`
		}
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			return "", fmt.Errorf("log line %s: %w", line, err)
		}
		if fields.VolumeID == volumeID {
			problem = fields.Err
		}
	}
	return problem, nil
}
